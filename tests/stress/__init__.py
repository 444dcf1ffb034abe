"""Random programs, run eagerly and graphed: whatever they leave behind is equal bit for bit.

Read in this order: ``operations`` (what a program is made of), ``programs`` (how one is drawn),
``worlds`` (one script, two worlds), ``machine`` (what happens between the calls),
``backends`` (simulated arrays or CuPy), ``soak`` (for hours, with an eye on memory).
"""
