"""The dashboard: a recording in the browser, from all ranks down to a single kernel.

``app.py`` makes the Dash application out of the pages in ``views/``, which is where
a page is added; ``library.py`` knows which recordings may be opened; ``security.py``
decides who may ask; ``server.py`` listens. All numbers come from ``diagnose``.
"""
