"""Home timelines: the posts of the authors that a reader follows, as views.

headwater run app.py                        maintains the views
python feed.py                              sends some posts and follows
python home.py ann                          reads a timeline
"""

import os

from pyspark.sql import DataFrame

import headwater as hw

STAR = int(os.environ.get("STAR", "10000"))
"""Maximum number of followers to which an author's posts are copied; see README.md."""

app = hw.App("timeline")
posts = app.topic("posts", schema="post string, author string, text string, posted_at timestamp, version long")
follows = app.topic("follows", schema="follower string, author string, follows boolean, version long")


def _there(posted: DataFrame) -> DataFrame:
    """Return the posts that are not deleted; a deletion is a post without text."""
    written = hw.table(posted, key="post", position="version", deleted="text is null")
    return written.select("post", "author", "text", "posted_at", "_change")


def _following(followed: DataFrame) -> DataFrame:
    """Return the current pairs of follower and author."""
    found = hw.table(followed, key=["follower", "author"], position="version", deleted="not follows")
    return found.select("follower", "author", "_change")


def _stars(following: DataFrame) -> DataFrame:
    """Return the authors with more than `STAR` followers."""
    followers = hw.aggregate(following, what={"followers": hw.count()}, by="author")
    return followers.where(f"followers > {STAR}").select("author", "_change")


@app.view(posts, follows, key=["reader", "posted_at", "post"])
def timeline(posted: DataFrame, followed: DataFrame) -> DataFrame:
    """One row for each reader and post of an author they follow, except stars, so that reading is one query."""
    following = _following(followed)
    ordinary = hw.join(_there(posted), _stars(following), on="author", how="anti")
    read = hw.join(ordinary, following.withColumnRenamed("follower", "reader"), on="author")
    return read.select("reader", "posted_at", "post", "author", "text", "_change")


@app.view(posts, follows, key=["author", "posted_at", "post"])
def star_posts(posted: DataFrame, followed: DataFrame) -> DataFrame:
    """The posts of stars, stored once for all followers."""
    found = hw.join(_there(posted), _stars(_following(followed)), on="author", how="semi")
    return found.select("author", "posted_at", "post", "text", "_change")


@app.view(follows, key=["reader", "author"])
def stars_followed(followed: DataFrame) -> DataFrame:
    """The stars that each reader follows."""
    following = _following(followed)
    found = hw.join(following, _stars(following), on="author", how="semi")
    return found.selectExpr("follower as reader", "author", "_change")
