"""Send posts and follows to a broker, including a deletion and an unfollow."""

import json
import sys

from confluent_kafka import Producer

FOLLOWS = [("ann", "bob", True), ("ann", "cleo", True), ("dan", "bob", True), ("dan", "bob", False)]
POSTS = [
    ("1", "bob", "first!"),
    ("2", "cleo", "tea?"),
    ("3", "bob", "typo"),
    ("3", "bob", None),
    ("4", "dan", "hi"),
]


def main(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for version, (follower, author, follows) in enumerate(FOLLOWS):
        row = {"follower": follower, "author": author, "follows": follows, "version": version}
        producer.produce("follows", key=f"{follower} {author}", value=json.dumps(row))
    for version, (post, author, text) in enumerate(POSTS):
        at = f"2026-11-15T12:00:{int(post):02d}Z"
        row = {"post": post, "author": author, "text": text, "posted_at": at, "version": version}
        producer.produce("posts", key=post, value=json.dumps(row))
    producer.flush()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
