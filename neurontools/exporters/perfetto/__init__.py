"""A host as a trace that Perfetto opens: cores, processes, memory and events as tracks.

Fields and their numbers are those of Perfetto's protos (protos/perfetto/trace/trace_packet.proto and track_event/*),
written by hand: a recording becomes a trace where protobuf has no classes for it.
"""
