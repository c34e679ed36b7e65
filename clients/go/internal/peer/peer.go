package peer

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// A Script returns the elements of the reply to a request; nil: no reply.
type Script func(connection net.Conn, message []any) []any

// Saying returns a Script that answers each request with this payload, under the id of the request.
func Saying(payload []byte) (Script, error) {
	elements, err := Decode(payload)
	if err != nil {
		return nil, err
	}
	for i, element := range elements { // the codec reads maps without an order
		if fields, is := element.(map[string]any); is {
			var ordered Map
			for name, value := range fields {
				ordered = append(ordered, [2]any{name, value})
			}
			elements[i] = ordered
		}
	}
	return func(_ net.Conn, message []any) []any {
		return append([]any{elements[0], message[1]}, elements[2:]...)
	}, nil
}

// A Peer is a daemon that answers by a Script, and HELLO and PING by itself.
type Peer struct {
	Path      string
	directory string
	listener  net.Listener

	mu          sync.Mutex
	script      Script
	seen        [][]any
	connections []net.Conn
}

// New listens on a Unix socket in a new folder, whose path must be short.
func New(script Script) (*Peer, error) {
	directory, err := os.MkdirTemp("", "tg-")
	if err != nil {
		return nil, err
	}
	p := &Peer{Path: filepath.Join(directory, "s"), directory: directory, script: script}
	return p, p.Listen()
}

// Listen starts to listen, also after Hide.
func (p *Peer) Listen() error {
	listener, err := net.Listen("unix", p.Path)
	if err != nil {
		return err
	}
	p.listener = listener
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.connections = append(p.connections, connection)
			p.mu.Unlock()
			go p.serve(connection)
		}
	}()
	return nil
}

// Frame prepends the length to a message.
func Frame(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

func (p *Peer) serve(connection net.Conn) {
	defer connection.Close()
	for {
		var size [4]byte
		if _, err := io.ReadFull(connection, size[:]); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(connection, payload); err != nil {
			return
		}
		message, err := Decode(payload)
		if err != nil || len(message) < 2 {
			message = []any{"undecodable", payload}
		}
		p.mu.Lock()
		p.seen = append(p.seen, message)
		script := p.script
		p.mu.Unlock()
		var answer []any
		switch message[0] {
		case uint64(0):
			answer = []any{0, message[1], 1, Map{{"server", "played/1"}, {"boot", 1}, {"connection", 1}}}
		case uint64(8):
			answer = []any{2, message[1], true}
		default:
			answer = script(connection, message)
		}
		if answer != nil && message[1] != nil {
			// A client that has closed may have sent more before: a release behind HELLO.
			_, _ = connection.Write(Frame(Encode(answer)))
		}
	}
}

// Play replaces the script.
func (p *Peer) Play(script Script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = script
}

// Seen returns all messages so far, including HELLO.
func (p *Peer) Seen() [][]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([][]any(nil), p.seen...)
}

// HangUp closes every connection.
func (p *Peer) HangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, connection := range p.connections {
		if stream, is := connection.(*net.UnixConn); is { // Close alone would wait for a pending Read
			_ = stream.CloseRead()
			_ = stream.CloseWrite()
		}
		_ = connection.Close()
	}
	p.connections = nil
}

// Hide stops listening and hangs up.
func (p *Peer) Hide() {
	_ = p.listener.Close() // which removes the socket
	p.HangUp()
}

// Close stops the peer and removes its folder.
func (p *Peer) Close() {
	p.Hide()
	_ = os.RemoveAll(p.directory)
}
