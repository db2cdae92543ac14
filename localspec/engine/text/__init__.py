"""Text around a token engine: chat templates, streaming text, tool calls, grammars.

Nothing here knows a backend, a file or a screen: the only thing it asks of a model is the `Vocabulary`
protocol. Import the modules, not this package; templates (jinja2) are read only when they are needed.
"""
