"""What figures are made of: colours, the look of all, places of lanes, the contract of a figure.

``palette`` is for pages too and loads no plotly.
"""
