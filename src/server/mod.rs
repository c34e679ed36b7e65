//! SOCKETS: listen, one connection, drain.
