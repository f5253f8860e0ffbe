//! Dev-only builders: upstreams, clients, a running gateway.
