"""Ingestion: tables of any size become row stores."""

from .ingest import ingest

__all__ = ["ingest"]
