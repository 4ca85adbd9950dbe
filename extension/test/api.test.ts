import { ServerConnection } from '@jupyterlab/services';
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Api, ApiError } from '../src/api';

/** Return requests to a server that gives one answer, and what it was asked. */
function answering(answer: () => Response | Promise<Response>) {
  const asked: { method: string; path: string; body: string }[] = [];
  const fetch = async (input: RequestInfo | URL, init?: RequestInit): Promise<Response> => {
    const request = new Request(input, init);
    const path = request.url.replace(/^http:\/\/hub.example/, '').replace(/[?&]\d+$/, '');
    asked.push({ method: request.method, path, body: await request.text() });
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

test('requests go to the base URL of the server, and name the cluster by its identity', async () => {
  const { api, asked } = answering(() => json({}, 202));

  await api.scale({ name: 'a/b', id: '1f' }, 8);

  assert.deepEqual(asked, [
    {
      method: 'POST',
      path: '/user/me/workbench/api/clusters/a%2Fb/scale?id=1f',
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

  await assert.rejects(
    api.scale({ name: 'a', id: '1f' }, 5),
    new ApiError(400, 'five is not possible', 'line')
  );
});

test('an answer that is not ours is said by its status', async () => {
  const { api } = answering(() => new Response('<html>', { status: 404, statusText: 'Not Found' }));

  await assert.rejects(api.clusters(), new ApiError(404, '404 Not Found'));
});

test('a page in place of data, as that of a login, is an error with the remedy', async () => {
  const { api } = answering(() => new Response('<!DOCTYPE html>', { status: 200 }));

  await assert.rejects(
    api.clusters(),
    (error: ApiError) => error.status === 200 && error.message.includes('Reload the page')
  );
});

test('no answer at all is an error of status 0', async () => {
  const { api } = answering(() => Promise.reject(new TypeError('no route')));

  await assert.rejects(api.clusters(), (error: ApiError) => error.status === 0);
});

test('the dashboard of a cluster has its address, with a slash at its end', () => {
  const { api } = answering(() => json({}));

  assert.equal(api.dashboardUrl('a b'), 'http://hub.example/user/me/workbench/dashboard/a%20b/');
});

const URL_OF_LOG = 'http://hub.example/workbench/api/clusters/a/logs/head';

function withSettings(settings: Partial<ServerConnection.ISettings> = {}) {
  const asked: string[] = [];
  const fetch = (input: RequestInfo | URL): Promise<Response> => {
    asked.push(new Request(input).url.replace(/&\d+$/, ''));
    return Promise.resolve(new Response('{"text": "", "next": 1, "size": 1}'));
  };
  const baseUrl = 'http://hub.example/';
  const made = ServerConnection.makeSettings({ baseUrl, fetch, Request, Headers, ...settings });
  return { api: new Api(made), asked };
}

test('parts of a log are those of the cluster that is meant', async () => {
  const { api, asked } = withSettings();

  await api.logs('a').part('head', -10);
  await api.logs('a', '1f').part('head', 0);

  assert.deepEqual(asked, [`${URL_OF_LOG}?from=-10`, `${URL_OF_LOG}?from=0&id=1f`]);
});

test('a download is of the cluster that is meant', () => {
  const { api } = withSettings();

  assert.equal(api.logs('a').downloadUrl('head'), `${URL_OF_LOG}/download`);
  assert.equal(api.logs('a', '1f').downloadUrl('head'), `${URL_OF_LOG}/download?id=1f`);
});

test('a download has the token in its address where the websocket has it', () => {
  const { api } = withSettings({ token: 'a b', appendToken: true });

  assert.equal(api.logs('a').downloadUrl('head'), `${URL_OF_LOG}/download?token=a%20b`);
});
