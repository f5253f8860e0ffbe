//! Workers: listeners, connections, exchanges.
