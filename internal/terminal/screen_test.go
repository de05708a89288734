package terminal

import (
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func emulated(t testing.TB, size engi.TerminalSize, output string) (*emulator, error) {
	t.Helper()
	e := newEmulator(size)
	t.Cleanup(e.close)
	return e, e.write([]byte(output), time.Now().Add(emulationTime))
}

// TestNumbersAreShort filters sequences in one piece and byte by byte.
func TestNumbersAreShort(t *testing.T) {
	for in, want := range map[string]string{
		"\x1b[123456;99999999h12345678": "\x1b[1234;9999h12345678",
		"\x9b99999b":                    "\x9b9999b",
		"❛123456":                       "❛123456", // its last byte is also a control character
		"\x1b]0;123456\x07":             "\x1b]0;123456\x07",
		"\x1b[\x1b[55555m":              "\x1b[\x1b[5555m",
	} {
		var f, g numbers
		if got := string(f.clean([]byte(in))); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
		got := ""
		for i := range len(in) {
			got += string(g.clean([]byte(in[i : i+1])))
		}
		if got != want {
			t.Errorf("%q byte by byte became %q, want %q", in, got, want)
		}
	}
}

// TestHostileOutput checks that expensive output only gets limited work.
func TestHostileOutput(t *testing.T) {
	for name, output := range map[string]string{
		"repeat":    "x\x1b[9999b",
		"insert":    "\x1b[H\x1b[9999L",
		"tabs":      "\x1b[9999I\x1b[9999Z",
		"scroll":    "\x1b[9999S\x1b[9999T",
		"combining": "e\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301",
		"titles":    "\x1b]0;" + strings.Repeat("x", 1000) + "\x07",
		"unended":   "\x1b]0;xxxxxxxxxxxx",
		"queries":   "\x1b[c\x1b[6n\x1b[?2026$p",
	} {
		t.Run(name, func(t *testing.T) {
			e := newEmulator(engi.TerminalSize{Cols: 65535, Rows: 65535})
			defer e.close()
			began := time.Now()
			err := e.write([]byte(strings.Repeat(output, 2<<20/len(output))), began.Add(300*time.Millisecond))
			if err != nil && !engi.Is(err, engi.Exhausted) {
				t.Error(err)
			}
			// One step may exceed the time limit, but not by all the requested work.
			if took := time.Since(began); err != nil && took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
			if s := e.screen(); len(s.Lines) != MaxRows || len(s.Title) > maxTitle {
				t.Errorf("%d lines, title of %d bytes", len(s.Lines), len(s.Title))
			}
		})
	}
}

// TestPaintShowsTheSame paints screens into another terminal.
func TestPaintShowsTheSame(t *testing.T) {
	size := engi.TerminalSize{Cols: 40, Rows: 10}
	for name, output := range map[string]string{
		"text":      "hello\r\nwörld 日本 e\u0301\r\n",
		"colours":   "\x1b[31;44mred\x1b[0m \x1b[38;2;1;2;3;1mbold\x1b[0m\x1b[5;5H\x1b[7mx",
		"alternate": "main\x1b[?1049h\x1b[?1h\x1b[?25l\x1b[3;3Hvim",
		"full":      strings.Repeat(strings.Repeat("x", 40)+"\r\n", 9) + strings.Repeat("y", 40),
		"wide":      strings.Repeat("日", 20),
	} {
		e, err := emulated(t, size, output)
		if err != nil {
			t.Fatal(err)
		}
		f, err := emulated(t, size, string(e.paint()))
		if err != nil {
			t.Fatal(err)
		}
		a, b := e.screen(), f.screen()
		if x, y := strings.Join(a.Lines, "\n"), strings.Join(b.Lines, "\n"); x != y || a.CursorX != b.CursorX || a.CursorY != b.CursorY || a.CursorVisible != b.CursorVisible || a.Alternate != b.Alternate {
			t.Errorf("%s: painted %+v, want %+v", name, b, a)
		}
		for y := range a.Lines {
			for x := range int(size.Cols) {
				if p, q := e.vt.CellAt(x, y), f.vt.CellAt(x, y); p != nil && q != nil && !p.Style.Equal(&q.Style) {
					t.Errorf("%s: the style at %d, %d is %+v, want %+v", name, x, y, q.Style, p.Style)
				}
			}
		}
	}
}

func FuzzScreen(f *testing.F) {
	for _, seed := range []string{"hello\r\n\x1b[31mred", "\x1b[?1049h\x1b[2J\x1b[5;5H", "\x1b]0;title\x07\x1bP1$r\x1b\\", "\x1b[999999b\x9b8;9t", "e\u0301\u200d👨", "\x1b(0lqk\x0e\x0f"} {
		f.Add([]byte(seed), uint16(80), uint16(24))
	}
	f.Fuzz(func(t *testing.T, output []byte, cols, rows uint16) {
		e := newEmulator(engi.TerminalSize{Cols: cols % 200, Rows: rows % 60})
		defer e.close()
		if err := engi.Ignore(e.write(output, time.Now().Add(emulationTime)), engi.Exhausted); err != nil {
			t.Fatal(err)
		}
		e.vt.Resize(clamp(engi.TerminalSize{Cols: rows % 200, Rows: cols % 60}))
		s := e.screen()
		if len(s.Lines) != int(s.Size.Rows) || s.CursorX < 0 || s.CursorX > int(s.Size.Cols) || s.CursorY < 0 || s.CursorY >= int(s.Size.Rows) {
			t.Fatalf("%+v", s)
		}
		if len(e.paint()) > int(s.Size.Cols)*int(s.Size.Rows)*(maxCell+100)+1000 {
			t.Fatal("the painted screen is too large")
		}
	})
}
