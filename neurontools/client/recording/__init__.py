"""Recordings: the snapshots of a host in a compact file that survives a crash of its writer.

The format, version 1. A file begins with one line of text, `NEURONREC 1 {json}` and a newline; the JSON object says who
wrote it and when, and which fields the snapshots have (`field_list`). Records follow, each a type (1 byte), the length
of its payload (unsigned LEB128), the payload, and the CRC-32 of type and payload (4 bytes, big endian):

* `K`, a key snapshot: the bytes of a `Snapshot` message of neuron.proto, as a zlib stream of its own.
* `D`, a snapshot as its difference from the one before: a piece of one raw deflate stream that begins anew behind every
  key snapshot and is flushed (Z_SYNC_FLUSH) at the end of every record. Uncompressed it is a sequence of integers,
  zigzag and LEB128 coded, in which a 0 is followed by how many more zeros come: the residuals of all numbers of the
  snapshot (`codec` says in which order, `prediction` against which expectation and in which steps), then the changes of
  its latency histograms.
* `E`, the regular end, without payload.

Numbers are kept in the steps of `prediction.step_of`: shares to 1/10,000, times to 0.1 or 1 ms, FLOPS and latencies to
0.04 %, everything that is counted exactly (FLOP totals to 1/4096 of their growth). Steps don't add up: the writer
predicts from what the reader will have.

A file that ends within a record is read up to its last whole one.
"""
