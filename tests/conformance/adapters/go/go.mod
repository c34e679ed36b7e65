module github.com/tidegate/tidegate/tests/conformance/adapters/go

go 1.19

require github.com/tidegate/tidegate/clients/go v0.1.0

replace github.com/tidegate/tidegate/clients/go => ../../../../clients/go
