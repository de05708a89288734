package remote

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A remoteTool is a tool of a server, adapted for models.
type remoteTool struct {
	name        string // for models
	remoteName  string // for the server
	description string
	schema      *llm.Schema
	repeatable  bool
}

const (
	maxTools       = 128
	maxPages       = 64
	maxDescription = 4 << 10
	maxSchema      = 32 << 10
	maxSchemas     = 512 << 10 // maximum bytes of all schemas, which are part of every request to the model
	maxSkipped     = 32

	maxText   = 1 << 20 // maximum bytes of text in a result
	maxImage  = 5 << 20
	maxImages = 8
)

// list asks the server for its tools and caches them.
func (s *session) list(ctx context.Context) ([]remoteTool, error) {
	ctx, cancel := s.source.withTimeout(ctx)
	defer cancel()
	session, err := s.connection(ctx)
	if err != nil {
		return nil, err
	}
	wanted := s.source.server.Tools
	var tools []remoteTool
	var skipped []string
	size := 0
	skip := func(name string, reason any) {
		s.source.opt.Log.WarnContext(ctx, "skip a tool of an MCP server", "server", s.source.server.Name, "tool", clip.Line(name, 80), "reason", reason)
		if len(skipped) < maxSkipped {
			skipped = append(skipped, fmt.Sprintf("%s: %v", clip.Line(name, 80), reason))
		}
	}
	cursor := ""
	for range maxPages {
		page, err := session.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			return nil, err
		}
		for _, t := range page.Tools {
			if t == nil || len(wanted) > 0 && !slices.Contains(wanted, t.Name) {
				continue
			}
			o, err := s.source.adapt(t)
			switch {
			case err != nil:
				skip(t.Name, err)
			case len(tools) == maxTools:
				skip(t.Name, fmt.Sprintf("there are more than %d tools", maxTools))
			case size+len(o.description)+len(o.schema.JSON()) > maxSchemas:
				skip(t.Name, "the schemas of all tools are too large together")
			case slices.ContainsFunc(tools, func(x remoteTool) bool { return x.name == o.name }):
				skip(t.Name, "there is another tool with the same name")
			default:
				size += len(o.description) + len(o.schema.JSON())
				tools = append(tools, o)
			}
		}
		if page.NextCursor == "" || page.NextCursor == cursor || len(tools) == maxTools {
			break
		}
		cursor = page.NextCursor
	}
	for _, name := range wanted {
		if !slices.ContainsFunc(tools, func(o remoteTool) bool { return o.remoteName == name }) {
			skip(name, "the configuration names it, but the server does not have it")
		}
	}
	s.source.update(tools, skipped, nil)
	return tools, nil
}

// adapt adapts a tool for models. It reports Invalid for a tool that cannot be adapted.
func (s *source) adapt(t *sdk.Tool) (o remoteTool, err error) {
	if t.Name == "" || len(t.Name) > 256 {
		return o, engi.Errorf(engi.Invalid, "its name has %d bytes", len(t.Name))
	}
	raw := json.RawMessage(`{"type":"object"}`)
	if t.InputSchema != nil {
		if raw, err = json.Marshal(t.InputSchema); err != nil {
			return o, engi.Errorf(engi.Invalid, "its schema cannot be encoded")
		}
	}
	if len(raw) > maxSchema {
		return o, engi.Errorf(engi.Invalid, "its schema has %d bytes, %d at most", len(raw), maxSchema)
	}
	var head struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(raw, &head) != nil || head.Type != "object" {
		return o, engi.Errorf(engi.Invalid, "its arguments are not an object")
	}
	shape, err := llm.ParseSchema(raw)
	if err != nil {
		return o, err
	}
	about := t.Description
	if about == "" {
		about = t.Title
	}
	return remoteTool{
		name: s.toolName(t.Name), remoteName: t.Name, description: clip.Text(strings.ToValidUTF8(about, "\ufffd"), maxDescription), schema: shape,
		repeatable: t.Annotations != nil && t.Annotations.ReadOnlyHint,
	}, nil
}

// toolName returns the name of a tool with the server's prefix, in characters
// that providers accept.
func (s *source) toolName(theirs string) string {
	name := s.server.Name + "_" + toolNames.ReplaceAllString(theirs, "_")
	if len(name) > 64 {
		sum := sha256.Sum256([]byte(theirs))
		name = name[:55] + "_" + hex.EncodeToString(sum[:4])
	}
	return name
}

// result returns the result that a model sees for an answer.
func result(r *sdk.CallToolResult) tool.Result {
	out := tool.Result{Failed: r.IsError}
	var text strings.Builder
	say := func(s string) {
		if room := maxText - text.Len(); room > 0 {
			text.WriteString(clip.Text(s, room))
			text.WriteString("\n")
		}
	}
	for _, c := range r.Content {
		switch c := c.(type) {
		case *sdk.TextContent:
			say(c.Text)
		case *sdk.ImageContent:
			if img, why := image(c, len(out.Images)); why != "" {
				say(why)
			} else {
				out.Images = append(out.Images, img)
			}
		case *sdk.AudioContent:
			say(fmt.Sprintf("[audio of %d bytes left out]", len(c.Data)))
		case *sdk.ResourceLink:
			say(fmt.Sprintf("[resource %s: %s]", clip.Line(c.URI, 2<<10), clip.Line(c.Description, 500)))
		case *sdk.EmbeddedResource:
			switch {
			case c.Resource == nil:
			case c.Resource.Text != "" || len(c.Resource.Blob) == 0:
				say(fmt.Sprintf("[resource %s]\n%s", clip.Line(c.Resource.URI, 2<<10), c.Resource.Text))
			default:
				say(fmt.Sprintf("[resource %s of %d bytes left out]", clip.Line(c.Resource.URI, 2<<10), len(c.Resource.Blob)))
			}
		}
	}
	if text.Len() == 0 && r.StructuredContent != nil {
		if raw, err := json.Marshal(r.StructuredContent); err == nil {
			say(string(raw))
		}
	}
	out.Text = strings.TrimSuffix(strings.ToValidUTF8(text.String(), "\ufffd"), "\n")
	return out
}

// image returns an image, or the reason for omitting it.
func image(c *sdk.ImageContent, have int) (engi.Image, string) {
	kind := http.DetectContentType(c.Data)
	switch {
	case have == maxImages:
		return engi.Image{}, fmt.Sprintf("[image left out: there are more than %d]", maxImages)
	case len(c.Data) > maxImage:
		return engi.Image{}, fmt.Sprintf("[image of %d bytes left out: %d at most]", len(c.Data), maxImage)
	case !slices.Contains(engi.ImageTypes(), kind):
		return engi.Image{}, fmt.Sprintf("[image of type %s left out]", clip.Line(c.MIMEType, 80))
	}
	return engi.Image{MediaType: kind, Data: bytes.Clone(c.Data)}, ""
}
