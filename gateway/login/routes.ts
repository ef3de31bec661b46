/** How the dashboard signs people in and out. Without `gateway.login` it is told that there are keys alone. */
import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import { parseWith } from '../parse-with.ts';
import type { Login } from './login.ts';

/** 32 bytes in base64url, which the page makes and keeps. */
const page = z.string().regex(/^[\w-]{43}$/, '32 bytes in base64url');
const beginBody = z.strictObject({ page, root: z.url({ protocol: /^https?$/ }).max(2048) });
const finishBody = z.strictObject({ page, answer: z.string().max(16_384) });

export function loginRoutes(app: FastifyInstance, login: Login | undefined): void {
  app.get('/hpcserve/v1/login', async () => ({ login: login ? { name: login.name } : null }));
  if (!login) return;
  app.post('/hpcserve/v1/login/begin', async (request) => {
    const { page: secret, root } = parseWith(beginBody, request.body);
    return { url: await login.begin(request.raw, secret, root) };
  });
  app.post('/hpcserve/v1/login/finish', async (request, reply) => {
    const { page: secret, answer } = parseWith(finishBody, request.body);
    const { set_cookie } = await login.finish(request.raw, secret, answer);
    reply.header('set-cookie', set_cookie).header('cache-control', 'no-store');
    return {};
  });
  app.post('/hpcserve/v1/login/end', async (request, reply) => {
    const { set_cookie, url } = await login.end(request.raw);
    reply.header('set-cookie', set_cookie).header('cache-control', 'no-store');
    return { url: url ?? null };
  });
}
