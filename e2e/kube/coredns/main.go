// Command coredns is CoreDNS with only the plugins that a cluster's names need.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func init() { dnsserver.Directives = []string{"bind", "errors", "ready", "kubernetes"} }

func main() { coremain.Run() }
