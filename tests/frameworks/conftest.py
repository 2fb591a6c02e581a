"""How the tests of training frameworks run their scripts."""

from tests.harness.framework_script import run

__all__ = ["run"]
