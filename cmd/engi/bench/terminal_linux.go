package bench

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os/exec"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/creack/pty"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// Keys is the result of the benchmark of terminals: times from a key press to
// the byte that appears.
type Keys struct {
	Bench     string             `json:"bench"`
	Template  string             `json:"template"`
	Terminals int                `json:"terminals"`
	PerSecond float64            `json:"keys_per_second"` // total of all terminals
	Times     map[string]Sampled `json:"times"`           // "engi", "bare"
	Ratio50   float64            `json:"ratio_p50"`       // ratio of engi to bare
	Ratio99   float64            `json:"ratio_p99"`
	Host      Host               `json:"host"`
}

// echo is the program in each terminal. It shows a byte when it is ready, and then
// one for each key.
var echo = []string{"/bin/sh", "-c", "stty raw -echo; printf r; exec cat"}

// A keyboard sends keys to a terminal.
type keyboard interface {
	press(ctx context.Context) error // presses one key
	shown(ctx context.Context) error // waits for one byte
	close()
}

// pressed returns the time from a key press to the byte that appears.
func pressed(ctx context.Context, k keyboard) (time.Duration, error) {
	began := time.Now()
	err := k.press(ctx)
	if err == nil {
		err = k.shown(ctx)
	}
	return time.Since(began), err
}

// Terminals measures n keys in each of the given number of terminals at once, one every pause,
// in sandboxes of a template with up to perSandbox terminals, and the same with a
// bare terminal of this machine behind the same WebSocket library.
func Terminals(ctx context.Context, c *client.Client, template string, terminals, perSandbox, n int, pause time.Duration) (Keys, error) {
	k := Keys{Bench: "terminal", Template: template, Terminals: terminals, PerSecond: float64(terminals) / pause.Seconds(), Times: map[string]Sampled{}}
	bare, stop, err := bareServer()
	if err != nil {
		return k, err
	}
	defer stop()
	box := ""
	for name, open := range map[string]func(i int) (keyboard, error){
		"bare": func(int) (keyboard, error) { return openBare(ctx, bare) },
		"engi": func(i int) (keyboard, error) {
			if i%perSandbox == 0 {
				b, err := c.CreateSandbox(ctx, v1.SandboxRequest{Template: template, Processes: 4*perSandbox + 64})
				if err != nil {
					return nil, err
				}
				box = b.ID
			}
			return openAttachment(ctx, c, box)
		},
	} {
		s, err := pressKeys(ctx, open, terminals, n, pause)
		if err != nil {
			return k, err
		}
		k.Times[name] = s
	}
	if b := k.Times["bare"].Ms; b.P50 > 0 && b.P99 > 0 {
		k.Ratio50, k.Ratio99 = k.Times["engi"].Ms.P50/b.P50, k.Times["engi"].Ms.P99/b.P99
	}
	return k, nil
}

// pressKeys opens keyboards, and measures all of them at the same time.
func pressKeys(ctx context.Context, open func(i int) (keyboard, error), terminals, n int, pause time.Duration) (s Sampled, _ error) {
	boards := make([]keyboard, terminals)
	defer func() {
		for _, b := range boards {
			if b != nil {
				b.close()
			}
		}
	}()
	for i := range boards {
		var err error
		if boards[i], err = open(i); err != nil {
			return s, err
		}
		if err := boards[i].shown(ctx); err != nil {
			return s, err
		}
		if _, err := pressed(ctx, boards[i]); err != nil { // not measured, because the first key is slower
			return s, err
		}
	}
	var mu sync.Mutex
	var samples []time.Duration
	var work sync.WaitGroup
	for i, b := range boards {
		work.Go(func() {
			time.Sleep(pause * time.Duration(i) / time.Duration(terminals)) // users do not type at the same moments
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for range n {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				took, err := pressed(ctx, b)
				mu.Lock()
				if s.N++; err == nil {
					samples = append(samples, took)
				} else if s.Failures++; s.Failure == "" {
					s.Failure = err.Error()
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	s.Ms = Summarize(samples)
	return s, ctx.Err()
}

// attachment is a keyboard for a terminal of engi.
type attachment struct {
	*client.Attachment
	bytes chan error // receives a value for each byte that appears
	stop  context.CancelFunc
	done  chan struct{}
}

func openAttachment(ctx context.Context, c *client.Client, box string) (keyboard, error) {
	x, err := c.CreateTerminal(ctx, box, v1.TerminalRequest{Args: echo})
	if err != nil {
		return nil, err
	}
	a, err := c.AttachTerminal(ctx, box, x.ID, client.AttachOptions{})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	k := &attachment{a, make(chan error, 16), stop, make(chan struct{})}
	go func() {
		defer close(k.done)
		for data, err := range a.Output(ctx) {
			for range max(1, len(data)) {
				select {
				case k.bytes <- err:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return k, nil
}

func (k *attachment) press(context.Context) error {
	_, err := k.Write([]byte("x"))
	return err
}

func (k *attachment) shown(ctx context.Context) error {
	select {
	case err := <-k.bytes:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *attachment) close() {
	k.stop()
	<-k.done
	k.Close()
}

// bareServer serves a new terminal of this machine to each WebSocket.
func bareServer() (address string, stop func(), _ error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := &http.Server{Handler: http.HandlerFunc(serveBare)}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) }) // until the listener is closed
	return "ws://" + l.Addr().String(), func() { srv.Close(); serving.Wait() }, nil
}

func serveBare(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // Accept has sent the response
	}
	defer ws.CloseNow()
	cmd := exec.Command(echo[0], echo[1:]...)
	tty, err := pty.Start(cmd)
	if err != nil {
		_ = ws.Close(websocket.StatusInternalError, "no terminal") // the client sees the end
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 32<<10)
		for {
			n, err := tty.Read(buf)
			if err != nil || ws.Write(ctx, websocket.MessageBinary, buf[:n]) != nil {
				return
			}
		}
	})
	for {
		_, data, err := ws.Read(ctx)
		if err != nil {
			break
		}
		if _, err := tty.Write(data); err != nil {
			break
		}
	}
	cancel()
	_ = cmd.Process.Kill() // the process may have ended
	_ = cmd.Wait()
	tty.Close()
	reading.Wait()
}

// bareKeyboard is a keyboard for a bare terminal.
type bareKeyboard struct{ ws *websocket.Conn }

func openBare(ctx context.Context, address string) (keyboard, error) {
	ws, _, err := websocket.Dial(ctx, address, &websocket.DialOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil, err
	}
	return &bareKeyboard{ws}, nil
}

func (k *bareKeyboard) press(ctx context.Context) error {
	return k.ws.Write(ctx, websocket.MessageBinary, []byte("x"))
}

func (k *bareKeyboard) shown(ctx context.Context) error {
	_, data, err := k.ws.Read(ctx)
	if err == nil && len(data) != 1 {
		err = errors.New("a key did not show one byte")
	}
	return err
}

func (k *bareKeyboard) close() { k.ws.CloseNow() }
