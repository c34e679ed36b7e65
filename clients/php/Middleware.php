<?php

// Limits a PSR-15 application: Slim, Mezzio, or any other. Needs psr/http-server-middleware and a PSR-17 factory.

declare(strict_types=1);

namespace Tidegate;

use Psr\Http\Message\ResponseFactoryInterface;
use Psr\Http\Message\ResponseInterface;
use Psr\Http\Message\ServerRequestInterface;
use Psr\Http\Server\MiddlewareInterface;
use Psr\Http\Server\RequestHandlerInterface;

require_once __DIR__ . '/Guard.php';

/**
 * Checks every request before its handler runs, and adds limit headers to every response but redirects. The lease ends when
 * the handler returns. The decision is the request's attribute `tidegate`.
 */
final readonly class Middleware implements MiddlewareInterface
{
    private Guard $guard;

    /** @param mixed ...$options named arguments of Guard; its functions get the ServerRequestInterface */
    public function __construct(Client $client, private ResponseFactoryInterface $responses, string $domain = 'web',
        mixed ...$options)
    {
        $this->guard = new Guard($client, $domain, ...$options);
    }

    public function process(ServerRequestInterface $request, RequestHandlerInterface $handler): ResponseInterface
    {
        $server = $request->getServerParams();
        $seen = new Seen($request, $request->getMethod(), $request->getUri()->getPath(),
            (string) ($server['REMOTE_ADDR'] ?? ''), $request->getHeaderLine(...), $server['X_REQUEST_START'] ?? null,
            self::route($request));
        $decision = $this->guard->judge($seen);
        if ($decision === null) {
            return $handler->handle($request);
        }
        $request = $request->withAttribute('tidegate', $decision);
        if (!$decision->allowed) {
            $refusal = $this->guard->refusal($seen, $decision);
            $response = self::with($this->responses->createResponse($refusal->status), $refusal->headers);
            $response->getBody()->write($refusal->body);
            return $response;
        }
        $outcome = 'dropped';
        try {
            $decision->sleep();
            $response = $handler->handle($request);
            $outcome = $this->guard->outcome($response->getStatusCode());
        } finally {
            $decision->release($outcome);
        }
        $there = array_keys($response->getHeaders());
        return self::with($response, $this->guard->fields($decision, $response->getStatusCode(), $there));
    }

    /** Returns the pattern that Slim or Mezzio matched, if they have done so before; else null. */
    private static function route(ServerRequestInterface $request): ?string
    {
        $slim = $request->getAttribute('__route__');
        $mezzio = $request->getAttribute('Mezzio\Router\RouteResult');
        $route = is_callable([$mezzio, 'getMatchedRoute']) ? $mezzio->getMatchedRoute() : null;
        return match (true) {
            is_callable([$slim, 'getPattern']) => $slim->getPattern(),
            is_callable([$route, 'getPath']) => $route->getPath(),
            default => null,
        };
    }

    private static function with(ResponseInterface $response, array $headers): ResponseInterface
    {
        foreach ($headers as $name => $value) {
            $response = $response->withHeader($name, $value);
        }
        return $response;
    }
}
