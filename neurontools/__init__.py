"""Open monitoring tools for AWS Trainium and Inferentia."""
