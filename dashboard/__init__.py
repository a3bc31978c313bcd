"""The Dash timeline. Not built yet; `diagnose report` shows what there is."""
