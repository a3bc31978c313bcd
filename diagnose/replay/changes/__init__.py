"""The changes, a family a module; each exports ``CHANGES`` and is found by being there."""
