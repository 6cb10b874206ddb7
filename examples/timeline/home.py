"""Read a home timeline, newest post first: one query, and two more for readers that follow a star."""

import sys
from heapq import merge
from itertools import islice
from typing import Any

import headwater as hw


def home(views: hw.Views, reader: str, limit: int = 20) -> list[dict[str, Any]]:
    """Return the newest posts of the authors that a reader follows."""
    newest = "-posted_at,-post"
    mine = views["timeline"].rows(where=[("reader", "=", reader)], order_by=newest, limit=limit).rows
    stars = [row["author"] for row in views["stars_followed"].rows(where=[("reader", "=", reader)]).rows]
    theirs = []
    if stars:
        wanted = [("author", "in", stars)]
        theirs = views["star_posts"].rows(where=wanted, order_by=newest, limit=limit).rows
    both = merge(mine, theirs, key=lambda row: (row["posted_at"], row["post"]), reverse=True)
    return list(islice(both, limit))


if __name__ == "__main__":
    with hw.Views(".headwater") as views:
        for row in home(views, sys.argv[1]):
            print(f"{row['posted_at']}  {row['author']}: {row['text']}")
