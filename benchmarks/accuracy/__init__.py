"""Predictions of the replay against jobs that were really repaired."""
