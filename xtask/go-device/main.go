// A device in Go, as a user would write it with github.com/coder/websocket: what `cargo xtask test` builds as one more client.
//
// It offers compression, replies to each message with what it got, acknowledges "ack only", and after "drop" breaks its connection
// without an answer and resumes its session on the next one.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/coder/websocket"
)

// Larger than any message of the gateway.
const messageBytesMax = 1 << 20

// Bytes of a reply are written in parts of this size, so that a long one is a message of several frames.
const partBytes = 1000

type said struct {
	Type    string          `json:"type"`
	Session string          `json:"session"`
	Resume  string          `json:"resume"`
	ID      string          `json:"id"`
	Seq     uint64          `json:"seq"`
	Body    json.RawMessage `json:"body"`
}

type device struct {
	url     string
	session string
	resume  string
}

func main() {
	own := device{url: os.Args[1]}
	for {
		if err := own.connection(context.Background()); err != nil {
			log.Fatal(err)
		}
	}
}

// connection serves one until it is to break it.
func (own *device) connection(ctx context.Context) error {
	options := websocket.DialOptions{
		Subprotocols:    []string{"stillgate.v1"},
		CompressionMode: websocket.CompressionContextTakeover,
	}
	gateway, _, err := websocket.Dial(ctx, own.url, &options)
	if err != nil {
		return err
	}
	defer gateway.CloseNow()
	gateway.SetReadLimit(messageBytesMax)
	fmt.Printf("connected %s\n", gateway.Subprotocol())
	former := own.session
	if former != "" {
		hello, _ := json.Marshal(map[string]string{"type": "hello", "session": own.session, "resume": own.resume})
		if err := gateway.Write(ctx, websocket.MessageText, hello); err != nil {
			return err
		}
	}
	for {
		_, text, err := gateway.Read(ctx)
		if err != nil {
			return err
		}
		var message said
		if err := json.Unmarshal(text, &message); err != nil {
			return err
		}
		switch message.Type {
		case "hello":
			// The first greeting of a connection that resumes is of a session that it gives up.
			own.session, own.resume = message.Session, message.Resume
			if former != "" {
				fmt.Printf("resumed %t\n", message.Session == former)
			}
		case "message":
			fmt.Printf("got %d %d bytes\n", message.Seq, len(message.Body))
			if string(message.Body) == `"drop"` {
				return nil
			}
			if err := own.answer(ctx, gateway, message); err != nil {
				return err
			}
		}
	}
}

func (own *device) answer(ctx context.Context, gateway *websocket.Conn, message said) error {
	answer := map[string]any{"type": "ack", "seq": message.Seq}
	if string(message.Body) != `"ack only"` {
		answer = map[string]any{"type": "reply", "id": message.ID, "body": map[string]any{"got": message.Body}}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	writer, err := gateway.Writer(ctx, websocket.MessageText)
	if err != nil {
		return err
	}
	for len(text) > 0 {
		part := text[:min(partBytes, len(text))]
		if _, err := writer.Write(part); err != nil {
			return err
		}
		text = text[len(part):]
	}
	return writer.Close()
}

// As Go has it from 1.21 on.
func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}
