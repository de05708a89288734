package node

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/node/bundle"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/script"
)

// openScripts makes the script tier, or none where it is off or its helper is
// not there.
func (n *Node) openScripts(ctx context.Context) error {
	c := n.config.Script
	if c.Off {
		return nil
	}
	helper, err := bundle.Find(ctx, filepath.Join(n.config.CacheDir, "programs"), bundle.Script, n.config.JS)
	if err != nil {
		n.log.Warn("scripts are not served", "error", err, "remedy", engi.RemedyOf(err))
		return nil
	}
	apis, err := n.scriptAPIs(c)
	if err != nil {
		return err
	}
	n.script, err = script.New(script.Options{
		Helper: helper.Path, Dir: filepath.Join(n.config.CacheDir, "script"), APIs: apis, Log: n.log.With("room", "script"), Max: c.Helpers,
		Sessions: n.Sessions(),
		Warm:     min(2, c.Helpers),
		Limits: script.Limits{
			Code: c.Code, Timeout: time.Duration(c.Timeout), MinTimeout: time.Duration(c.MinTimeout),
			MaxTimeout: time.Duration(c.MaxTimeout), Memory: int64(c.Memory),
		},
	})
	return err
}

func (n *Node) scriptAPIs(c config.Script) ([]script.API, error) {
	apis := script.KV()
	var wall script.Wall
	if n.wall != nil {
		wall = n.wall
	}
	inSessions := n.sessions != nil
	if inSessions {
		apis = append(apis, script.Sandbox()...)
	}
	add := func(a script.API, err error) error {
		apis = append(apis, a)
		return err
	}
	var err error
	if len(c.FetchHosts) > 0 || inSessions && wall != nil {
		err = add(script.Fetch(script.FetchPolicy{Hosts: c.FetchHosts, Private: c.FetchPrivate}, wall))
	}
	if c.Weather != "" && err == nil {
		service := c.Weather
		if service == "open-meteo" {
			service = script.WeatherURL
		}
		err = add(script.Weather(service, c.FetchPrivate))
	}
	for _, a := range c.APIs {
		if err != nil {
			return nil, err
		}
		headers := map[string]string{}
		for name, variable := range a.HeadersEnv {
			value, ok := os.LookupEnv(variable)
			if !ok {
				return nil, engi.Errorf(engi.Invalid, "script.apis %s: the environment has no %s", a.Name, variable).
					WithRemedy("set it, or take the header out of headers_env")
			}
			headers[name] = value
		}
		err = add(script.HTTPFunction{
			Name: a.Name, Description: cmp.Or(a.Description, "Asks "+a.URL), Signature: a.Signature, Method: a.Method, URL: a.URL, Headers: headers,
		}.API(c.FetchPrivate))
	}
	return apis, err
}

// Scripts is the node's front desk of scripts; nil if it serves none.
func (n *Node) Scripts() engi.Scripts {
	if n.script == nil {
		return nil
	}
	return n.script.Scripts()
}
