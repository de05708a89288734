package preview

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

const table4 = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1435 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 101 1 0000000000000000 100 0 0 10 0
   1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 102 1 0000000000000000 100 0 0 10 0
   2: 0100007F:1435 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 103 1 0000000000000000 100 0 0 10 0
   3: 0500000A:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 104 1 0000000000000000 100 0 0 10 0
`

const table6 = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:0BB8 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 105 1 0 100 0 0 10 0
   1: 00000000000000000000000000000000:C34F 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 106 1 0 100 0 0 10 0
   2: 0000000000000000FFFF00000100007F:C33F 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 107 1 0 100 0 0 10 0
`

func TestListening(t *testing.T) {
	f := newFixture(t, nil)
	b := f.sandbox(nil)
	b.files = map[string]string{
		"/proc/net/tcp": table4, "/proc/net/tcp6": table6,
		"/proc/1": "", "/proc/7": "", "/proc/self": "",
		"/proc/7/fd/3": "/proc/7/fd/socket:[105]", "/proc/7/fd/4": "socket:[101]", "/proc/7/fd/0": "/dev/null", "/proc/1/fd/9": "socket:[102]",
		"/proc/7/comm": "node\n", "/proc/1/comm": "ngi\x1b[2Jnx\n",
	}
	got, err := f.proxy.Listening(t.Context(), "ann", b.record.ID)
	if err != nil {
		t.Fatal(err)
	}
	url := func(p int) string { return f.proxy.URL(b.record.ID, p) }
	want := []Port{{80, "ngi[2Jnx", url(80)}, {3000, "node", url(3000)}, {5173, "node", url(5173)}, {49999, "", url(49999)}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("ports (-want +got):\n%s", d)
	}
	if _, err := f.proxy.Listening(t.Context(), "bob", b.record.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("another's ports: %v", err)
	}
	b.change(func(s *engi.Sandbox) { s.State, s.Started = engi.Paused, time.Now() })
	if _, err := f.proxy.Listening(t.Context(), "ann", b.record.ID); !engi.Is(err, engi.Conflict) {
		t.Errorf("ports of one that sleeps: %v", err)
	}
}

func FuzzTable(f *testing.F) {
	f.Add(table4)
	f.Add(table6)
	f.Add("0: :: 0A\n0: 0:FFFFF 0 0A 1 2 3 4 5 6 7 8 9\n")
	f.Fuzz(func(t *testing.T, text string) {
		ports := map[int]string{}
		_ = parseSockets(strings.NewReader(text), ports)
		for p := range ports {
			if p < 1 || p > 65535 {
				t.Errorf("port %d", p)
			}
		}
	})
}
