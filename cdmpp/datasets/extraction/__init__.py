"""Extraction of records into two Parquet tables: shards, rows, schema, merging."""
