package rest

import (
	"cmp"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// params reads the parameters of a route into a struct. Tags of the fields name the source of
// each parameter and its allowed values, as for huma: path,
// query or header with a name, required, default, enum, minimum, maximum,
// minLength, maxLength, format, doc.
type params struct {
	schemas huma.Registry
	fields  []param
}

type param struct {
	*huma.Param
	index   []int // index of the field
	initial string
	split   bool // a list is one value with commas between its items
}

// newParams describes the fields of t, including those of embedded structs.
func newParams(schemas huma.Registry, t reflect.Type) *params {
	ps := &params{schemas: schemas}
	for _, f := range reflect.VisibleFields(t) {
		for _, in := range []string{"path", "query", "header"} {
			name, option, _ := strings.Cut(f.Tag.Get(in), ",")
			if name == "" {
				continue
			}
			s := huma.SchemaFromField(schemas, f, "")
			p := param{index: f.Index, initial: f.Tag.Get("default"), Param: &huma.Param{
				Name: name, In: in, Description: s.Description, Schema: s, Required: in == "path" || f.Tag.Get("required") == "true",
			}}
			if in == "query" {
				p.Explode = new(option == "explode")
				p.split = !*p.Explode
			}
			ps.fields = append(ps.fields, p)
		}
	}
	return ps
}

// read fills to with the parameters of c's request, or reports all of
// their faults.
func (ps *params) read(c *call, to reflect.Value) error {
	var query url.Values
	if c.r.URL.RawQuery != "" {
		query = c.r.URL.Query()
	}
	var faults []v1.Fault
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.ContainsFunc(ps.fields, func(p param) bool { return p.In == "query" && p.Name == name }) {
			faults = append(faults, v1.Fault{Field: "query." + name, Detail: "unknown query parameter"})
		}
	}
	for i := range ps.fields {
		p := &ps.fields[i]
		var text string
		switch p.In {
		case "path":
			text = c.r.PathValue(p.Name)
		case "query":
			text = query.Get(p.Name)
		case "header":
			text = c.r.Header.Get(p.Name)
		}
		field := p.In + "." + p.Name
		if text = cmp.Or(text, p.initial); text == "" {
			if p.Required {
				faults = append(faults, v1.Fault{Field: field, Detail: "it is missing"})
			}
			continue
		}
		v, err := p.set(to.FieldByIndex(p.index), text, query[p.Name])
		if err != "" {
			faults = append(faults, v1.Fault{Field: field, Detail: err})
			continue
		}
		if text == p.initial {
			continue
		}
		var res huma.ValidateResult
		huma.Validate(ps.schemas, p.Schema, huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, v, &res)
		for _, err := range res.Errors {
			d := err.(huma.ErrorDetailer).ErrorDetail() // Validate reports errors of this type only
			faults = append(faults, v1.Fault{Field: field, Detail: d.Message})
		}
	}
	return httpio.Invalid(faults)
}

// set parses text, or all values of an exploded list, into f. It returns the
// value for huma's check, or the fault.
func (p *param) set(f reflect.Value, text string, all []string) (any, string) {
	switch f.Kind() {
	case reflect.String:
		f.SetString(text)
		if id, ok := f.Interface().(interface{ Check() error }); ok {
			if err := id.Check(); err != nil {
				return nil, reasonOf(err)
			}
		}
		return text, ""
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, "invalid integer"
		}
		f.SetInt(n)
		return n, ""
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return nil, "invalid boolean"
		}
		f.SetBool(b)
		return b, ""
	case reflect.Slice:
		if p.split {
			all = strings.Split(text, ",")
		}
		f.Set(reflect.ValueOf(all))
		return all, ""
	}
	panic("rest: parameter " + p.Name + " is of type " + f.Type().String()) // a mistake in the table of routes; every test would show it
}
