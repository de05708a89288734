package node

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
	"github.com/engi-dev/engi/internal/node/bundle"
	"github.com/engi-dev/engi/internal/sandbox/script"
)

// openScripts opens the script tier, unless it is off or its helper program is
// missing.
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
	apis, err := n.scriptAPIs()
	if err != nil {
		return err
	}
	n.script, err = script.New(script.Options{
		Helper: helper.Path, Dir: filepath.Join(n.config.CacheDir, "script"), APIs: apis, Log: n.log.With("component", "script"), Max: c.Helpers,
		Sessions: n.Sessions(),
		Warm:     min(2, c.Helpers),
		Limits: script.Limits{
			Code: c.Code, Timeout: time.Duration(c.Timeout), MinTimeout: time.Duration(c.MinTimeout),
			MaxTimeout: time.Duration(c.MaxTimeout), Memory: int64(c.Memory),
		},
	})
	return err
}

// scriptAPIs returns the host functions that scripts may call.
func (n *Node) scriptAPIs() ([]script.API, error) {
	c := n.config.Script
	private, err := fetch.ParseNetworks(c.FetchPrivate)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "script.fetch_private: %w", err)
	}
	client := func(hosts ...string) *http.Client {
		return fetch.New(fetch.Options{Hosts: hosts, Private: private, Remedy: "the operator lists hosts in script.fetch_hosts and private addresses in script.fetch_private of config.toml"})
	}
	clientFor := func(host string) *http.Client { return client(host) }
	apis := append(script.KV(), script.Sandbox()...)
	var listed *http.Client
	if len(c.FetchHosts) > 0 {
		listed = client(c.FetchHosts...)
	}
	var ofSession func(engi.Owner, engi.NetworkPolicy) (*http.Client, error)
	if n.gateway != nil {
		ofSession = func(owner engi.Owner, p engi.NetworkPolicy) (*http.Client, error) {
			return fetch.Through(n.gateway, owner, p, fetch.Options{})
		}
	}
	if listed != nil || ofSession != nil {
		apis = append(apis, script.Fetch(listed, ofSession))
	}
	if c.Weather != "" {
		service := c.Weather
		if service == "open-meteo" {
			service = script.WeatherURL
		}
		a, err := script.Weather(service, clientFor)
		if err != nil {
			return nil, err
		}
		apis = append(apis, a)
	}
	for _, f := range c.APIs {
		headers := map[string]string{}
		for name, variable := range f.HeadersEnv {
			value, ok := os.LookupEnv(variable)
			if !ok {
				return nil, engi.Errorf(engi.Invalid, "script.apis %s: the environment has no %s", f.Name, variable).
					WithRemedy("set it, or remove the header from headers_env")
			}
			headers[name] = value
		}
		a, err := script.HTTPFunction{
			Name: f.Name, Description: cmp.Or(f.Description, "Asks "+f.URL), Signature: f.Signature, Method: f.Method, URL: f.URL, Headers: headers,
		}.API(clientFor)
		if err != nil {
			return nil, err
		}
		apis = append(apis, a)
	}
	return apis, nil
}

// Scripts returns the script tier; nil if scripts are off.
func (n *Node) Scripts() engi.Scripts {
	if n.script == nil {
		return nil
	}
	return n.script.Scripts()
}
