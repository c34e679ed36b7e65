// A small Express application. Only the line with limit() limits it.
const express = require("express");
const { Client } = require("tidegate");
const { limit } = require("tidegate/express");

const app = express();
app.use(limit(new Client({ pool: "express" }), "api"));
app.get("/v1/orders", (request, response) => response.json({ orders: [] }));
// The demonstration passes the listening socket.
app.listen({ fd: Number(process.env.LISTEN_FD) });
