package rest_test

import (
	"bytes"
	"image/png"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

func TestAppsAreLookedAt(t *testing.T) {
	w, _ := apitest.Serve(t, nil)
	read[v1.App](t, ask(t, w, "POST", "/v1/apps", `{"name":"shop"}`), 201)
	const app = "/v1/apps/shop"
	if c := read[v1.AppCheck](t, ask(t, w, "POST", app+"/check", ""), 200); c.Revision != 1 || c.Problems == nil || len(c.Problems) != 0 {
		t.Errorf("%+v", c)
	}
	applying(t, w, app, "<file path=\"src/App.jsx\">\n// 1\nthrow new Error('late')\n</file>")
	c := read[v1.AppCheck](t, ask(t, w, "POST", app+"/check", ""), 200)
	if want := (v1.AppFault{Source: "browser", Path: "src/App.jsx", Line: 2, Text: "throw new Error('late')"}); len(c.Problems) != 1 || c.Problems[0] != want {
		t.Errorf("%+v", c)
	}
	for body, width := range map[string]int{"": 1280, `{"width":390,"path":"/cart"}`: 390} {
		r := ask(t, w, "POST", app+"/screenshot", body)
		image, err := png.DecodeConfig(bytes.NewReader(r.Body.Bytes()))
		if err != nil || r.Code != 200 || image.Width != width || r.Header().Get("Content-Type") != "image/png" || r.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d, %+v, %v, %v", body, r.Code, image, r.Header(), err)
		}
	}
	refused(t, ask(t, w, "POST", "/v1/apps/none/check", ""), 404, engi.NotFound)
	refused(t, ask(t, w, "POST", "/v1/apps/none/screenshot", ""), 404, engi.NotFound)
}
