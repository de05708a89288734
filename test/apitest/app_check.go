package apitest

import (
	"bytes"
	"cmp"
	"context"
	"image"
	"image/png"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Check implements engi.Apps. Lines with "throw" are the errors.
func (a *Apps) Check(_ context.Context, viewer engi.Viewer, name string) (engi.AppCheck, error) {
	r, err := a.at(viewer, name, 0)
	c := engi.AppCheck{Revision: r.Number}
	for path, text := range r.files {
		for i, line := range strings.Split(text, "\n") {
			if strings.Contains(line, "throw") {
				c.Problems = append(c.Problems, engi.AppFault{Source: "browser", Path: path, Line: i + 1, Text: line})
			}
		}
	}
	return c, err
}

// Screenshot implements engi.Apps. The pages are white.
func (a *Apps) Screenshot(_ context.Context, spec engi.ScreenshotSpec) ([]byte, error) {
	if _, err := a.at(spec.Viewer, spec.App, 0); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err := png.Encode(&b, image.NewGray(image.Rect(0, 0, cmp.Or(spec.Width, 1280), cmp.Or(spec.Height, 800))))
	return b.Bytes(), err
}
