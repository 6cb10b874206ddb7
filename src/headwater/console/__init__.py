"""The console: web pages that show an app in time, drawn in the browser from `serve`'s HTTP API alone.

No build step and nothing from elsewhere: `static/` is what the browser gets.
"""
