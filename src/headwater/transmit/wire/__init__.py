"""Encoding and decoding of Kafka's messages. Opens no socket and no file.

apis, codes                    supported requests and versions; error codes
frame                          request and response headers
produce, fetch                 the two hot requests, decoded by hand; `reader` and `writer` are their fields
list_offsets, throttle_time    special timestamps; patching the throttle time of an encoded response
json_messages, schemas         messages that kafka-python has no class for
"""
