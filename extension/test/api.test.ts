import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ServerConnection } from '@jupyterlab/services';

import { Api } from '../src/api';
import { ApiError } from '../src/apiError';

/** Return requests to a server that gives one answer, and what it was asked. */
function answering(answer: () => Response | Promise<Response>) {
  const asked: { method: string; path: string; body: string }[] = [];
  const fetch = async (input: RequestInfo | URL, init?: RequestInit): Promise<Response> => {
    const request = new Request(input, init);
    const { pathname } = new URL(request.url);
    asked.push({ method: request.method, path: pathname, body: await request.text() });
    return answer();
  };
  const settings = ServerConnection.makeSettings({
    baseUrl: 'http://hub.example/user/me/',
    wsUrl: 'ws://hub.example/user/me/',
    fetch,
    Request,
    Headers
  });
  return { api: new Api(settings), asked };
}

const json = (value: unknown, status = 200) => new Response(JSON.stringify(value), { status });

test('requests go to the base URL of the server', async () => {
  const { api, asked } = answering(() => json({}, 202));

  await api.scale('a/b', 8);

  assert.deepEqual(asked, [
    {
      method: 'POST',
      path: '/user/me/workbench/api/clusters/a%2Fb/scale',
      body: '{"ranks":8}'
    }
  ]);
});

test('an answer without a body is one', async () => {
  const { api, asked } = answering(() => new Response(null, { status: 204 }));

  await api.dismiss('1');

  assert.equal(asked[0]?.method, 'DELETE');
});

test('what the server refuses is said in its words, with the end of the log', async () => {
  const { api } = answering(() => json({ message: 'five is not possible', log: 'line' }, 400));

  await assert.rejects(api.scale('a', 5), new ApiError(400, 'five is not possible', 'line'));
});

test('an answer that is not ours is said by its status', async () => {
  const { api } = answering(() => new Response('<html>', { status: 404, statusText: 'Not Found' }));

  await assert.rejects(api.clusters(), new ApiError(404, '404 Not Found'));
});

test('no answer at all is an error of status 0', async () => {
  const { api } = answering(() => Promise.reject(new TypeError('no route')));

  await assert.rejects(api.clusters(), (error: ApiError) => error.status === 0);
});

test('the dashboard of a cluster has its address, with a slash at its end', () => {
  const { api } = answering(() => json({}));

  assert.equal(api.page('a b'), 'http://hub.example/user/me/workbench/dashboard/a%20b/');
});
