"""Where results rest: a view's rows, its changes and the pipeline's progress, in one database.

Written by `spark`, read by `serve`; it knows neither.
"""
