"""Figures made from tables: plotly, drawn by the HTML report, notebooks and the dashboard.

A module draws one figure and exports ``FIGURE``, a
``diagnose.plotting.definition.FigureDefinition``; being there is all it takes
(``diagnose.engine.figures``). ``draw`` takes tables, the labels of GPUs, the unit of times
and a palette, and returns a ``plotly.graph_objects.Figure``; it measures nothing. Text in a
figure is escaped here, because plotly reads some HTML in it. Nothing is imported until it is
needed: ``import diagnose.figures`` loads no plotly.
"""
