"""How numbers, findings and names read, whoever shows them: reports, pages, messages.

``numbers`` rounds and names units, ``plain`` makes text from a trace safe to show,
``findings`` and ``summary`` put a diagnosis into sentences, ``labels`` name causes,
classes and GPUs. Nothing here draws.
"""
