//go:build tools

// Package etcd pins the store of the API server.
package etcd

import _ "go.etcd.io/etcd/server/v3"
