// What `cargo xtask test` builds the device in Go from. It builds with the Go of Debian 12.
module stillgate/go-device

go 1.19

require github.com/coder/websocket v1.8.13
