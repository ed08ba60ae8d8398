"""From records to the two Parquet tables: shards, rows, schema, merging."""
