"""Home timelines: the posts of whom one follows, kept up to date by posts, deletions, follows and unfollows.

headwater run app.py                        keeps the views
python feed.py                              sends some posts and follows
python home.py ann                          reads a timeline
"""

import os

from pyspark.sql import DataFrame

import headwater as hw

STAR = int(os.environ.get("STAR", "10000"))
"""With more followers than this, an author's posts are not copied to them; see README.md."""

app = hw.App("timeline")
posts = app.topic("posts", schema="post string, author string, text string, posted_at timestamp, version long")
follows = app.topic("follows", schema="follower string, author string, follows boolean, version long")


def _there(posted: DataFrame) -> DataFrame:
    """The posts that are not deleted: a deletion is the post without its text."""
    written = hw.table(posted, key="post", position="version", deleted="text is null")
    return written.select("post", "author", "text", "posted_at", "_change")


def _following(followed: DataFrame) -> DataFrame:
    """Who follows whom."""
    found = hw.table(followed, key=["follower", "author"], position="version", deleted="not follows")
    return found.select("follower", "author", "_change")


def _stars(following: DataFrame) -> DataFrame:
    """The authors with very many followers."""
    followers = hw.aggregate(following, what={"followers": hw.count()}, by="author")
    return followers.where(f"followers > {STAR}").select("author", "_change")


@app.view(posts, follows, key=["reader", "posted_at", "post"])
def timeline(posted: DataFrame, followed: DataFrame) -> DataFrame:
    """A row for each reader and post of whom they follow, stars aside: reading it is one look-up."""
    following = _following(followed)
    ordinary = hw.join(_there(posted), _stars(following), on="author", how="anti")
    read = hw.join(ordinary, following.withColumnRenamed("follower", "reader"), on="author")
    return read.select("reader", "posted_at", "post", "author", "text", "_change")


@app.view(posts, follows, key=["author", "posted_at", "post"])
def star_posts(posted: DataFrame, followed: DataFrame) -> DataFrame:
    """The posts of stars, once, whoever follows them."""
    found = hw.join(_there(posted), _stars(_following(followed)), on="author", how="semi")
    return found.select("author", "posted_at", "post", "text", "_change")


@app.view(follows, key=["reader", "author"])
def stars_followed(followed: DataFrame) -> DataFrame:
    """Which stars each reader follows."""
    following = _following(followed)
    found = hw.join(following, _stars(following), on="author", how="semi")
    return found.selectExpr("follower as reader", "author", "_change")
