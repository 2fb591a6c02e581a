"""Model indexes: JSON files that list compiled models with their input, batch size and compile time.

A function that takes an index accepts the path of its file, or the loaded dictionary.
"""

from __future__ import annotations

import copy as copying
import json
import shutil
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from neurontools.runtime.launch.import_hook import VERSIONS

Index = dict[str, Any]


def create(
    filename: str,
    input_idx: int = 0,
    batch_size: int = 1,
    pipeline_size: int = 1,
    cast_mode: str | None = None,
    compile_s: float | None = None,
) -> Index:
    """Returns an index with one compiled model. `input_idx` is the index of its example among the inputs."""
    config = {
        "filename": str(filename),
        "input_idx": input_idx,
        "batch_size": batch_size,
        "pipeline_size": pipeline_size,
        "cast_mode": cast_mode,
        "compile_s": compile_s,
    }
    return {"version": VERSIONS["neuronperf"], "model_configs": [config]}


def load(filename: str) -> Index:
    """Reads an index from a file. Raises ValueError if the file holds no index."""
    try:
        index = json.loads(Path(filename).read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{filename} is no model index: {error}; create one with neuronperf.torch.compile") from error
    if not isinstance(index, dict) or not isinstance(index.get("model_configs"), list):
        raise ValueError(f"{filename} is no model index: it has no model_configs; write it with model_index.save")
    return index


def save(model_index: Index, filename: str | None = None, root_dir: str | None = None) -> str:
    """Writes an index to a file and returns the name of the file; without a name, to a new file in this directory."""
    if filename is None:
        with NamedTemporaryFile(prefix="model_", suffix=".json", dir=root_dir or ".", delete=False) as file:
            filename = str(Path(file.name).relative_to(Path.cwd())) if root_dir is None else file.name
        where = Path(filename)
    else:
        where = Path(root_dir or ".") / filename
    where.write_text(json.dumps(model_index, indent=4) + "\n", "utf-8")
    return str(where)


def append(*model_indexes: str | Index) -> Index:
    """Returns a new index with the models of all these indexes, each once."""
    if not model_indexes:
        raise ValueError("model_index.append: name at least one index")
    first, *others = map(_loaded, model_indexes)
    for other in others:
        first["model_configs"] += [config for config in other["model_configs"] if config not in first["model_configs"]]
    return first


def filter(index: str | Index, **kwargs: Any) -> Index:  # noqa: A001  the name of the API
    """Returns a new index with the models whose values are among those given, such as `batch_sizes=[1, 2]`."""
    found = _loaded(index)
    for name, value in kwargs.items():
        if value is not None:
            wanted = value if isinstance(value, (list, tuple, set)) else [value]
            found["model_configs"] = [
                config
                for config in found["model_configs"]
                if config.get(name, config.get(name.removesuffix("s"))) in wanted
            ]
    return found


def copy(old_index: str | Index, new_index: str, new_dir: str) -> str:
    """Copies an index to the file `new_index` and its models into `new_dir`. Returns the name of the file."""
    index = _loaded(old_index)
    Path(new_dir).mkdir(parents=True, exist_ok=True)
    for config in index["model_configs"]:
        config["filename"] = str(shutil.copy(config["filename"], new_dir))
    return save(index, new_index)


def move(old_index: str, new_index: str, new_dir: str) -> str:
    """Moves an index to the file `new_index` and its models into `new_dir`. Returns the name of the file."""
    name = copy(old_index, new_index, new_dir)
    delete(old_index)
    return name


def delete(filename: str) -> None:
    """Deletes an index and the models that it lists."""
    for config in load(filename)["model_configs"]:
        Path(config["filename"]).unlink(missing_ok=True)
    Path(filename).unlink()


def _loaded(index: str | Index) -> Index:
    return copying.deepcopy(index) if isinstance(index, dict) else load(index)
