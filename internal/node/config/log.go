package config

import (
	"io"
	"log/slog"
	"time"
)

// Logger returns a logger in the configured format. terminal says whether w is a
// terminal, for the format "auto".
func (c Config) Logger(w io.Writer, terminal bool) (*slog.Logger, error) {
	l, err := c.Level()
	if err != nil {
		return nil, err
	}
	if c.Log == "json" || c.Log == "auto" && !terminal {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l})), nil
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			a.Value = slog.StringValue(a.Value.Time().Format(time.TimeOnly))
		}
		return a
	}})), nil
}
