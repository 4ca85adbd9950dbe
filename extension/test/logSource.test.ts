import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ServerConnection } from '@jupyterlab/services';

import { Api } from '../src/api';
import { logsOf } from '../src/logs/contract';

const URL_OF_LOG = 'http://hub.example/workbench/api/clusters/a/logs/head';

function answering(settings: Partial<ServerConnection.ISettings> = {}) {
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
  const { api, asked } = answering();

  await logsOf(api, 'a').part('head', -10);
  await logsOf(api, 'a', '1f').part('head', 0);

  assert.deepEqual(asked, [`${URL_OF_LOG}?from=-10`, `${URL_OF_LOG}?from=0&id=1f`]);
});

test('a download is of the cluster that is meant', () => {
  const { api } = answering();

  assert.equal(logsOf(api, 'a').address('head'), `${URL_OF_LOG}/download`);
  assert.equal(logsOf(api, 'a', '1f').address('head'), `${URL_OF_LOG}/download?id=1f`);
});

test('a download has the token in its address where the websocket has it', () => {
  const { api } = answering({ token: 'a b', appendToken: true });

  assert.equal(logsOf(api, 'a').address('head'), `${URL_OF_LOG}/download?token=a%20b`);
});
