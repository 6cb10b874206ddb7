"""The console: web pages that show a running app, drawn in the browser from the HTTP API of `serve` alone.

    pages.py             the addresses of the pages, and the static files
    static/index.html    the frame of every page: header, health line, and an empty place for the page
    static/app.js        the shell: the registry of pages, the router, and the connection to the server
    static/pages/        one module per page
    static/parts/        what pages and shell are built from: the table of rows, the health line
    static/lib/          helpers that know nothing of the app: DOM, formats, charts, event streams, addresses

The browser gets the files in `static/` unchanged: no build step, and nothing is loaded from other hosts.
"""
