"""index.toml, compiled by scripts/compile-catalog."""

# fmt: off
CRC32 = 1465051399
TABLES: dict[str, dict[str, object]] = {'instance_types': {'inf1.xlarge': 'inferentia', 'inf1.2xlarge': 'inferentia', 'inf1.6xlarge': 'inferentia', 'inf1.24xlarge': 'inferentia', 'inf2.xlarge': 'inferentia2', 'inf2.8xlarge': 'inferentia2', 'inf2.24xlarge': 'inferentia2', 'inf2.48xlarge': 'inferentia2', 'trn1.2xlarge': 'trainium', 'trn1.32xlarge': 'trainium', 'trn1n.32xlarge': 'trainium', 'trn2.3xlarge': 'trainium2', 'trn2.48xlarge': 'trainium2', 'trn2u.48xlarge': 'trainium2', 'trn2n.48xlarge': 'trainium2', 'trn3pd98.3xlarge': 'trainium3', 'trn3s.48xlarge': 'trainium3', 'trn3e.24xlarge': 'trainium3'}}  # noqa: E501
