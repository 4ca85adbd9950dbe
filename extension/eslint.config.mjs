import js from '@eslint/js';
import jupyter from '@jupyter/eslint-plugin';
import hooks from 'eslint-plugin-react-hooks';
import { defineConfig, globalIgnores } from 'eslint/config';
import ts from 'typescript-eslint';

export default defineConfig(
  globalIgnores(['lib/', 'build/', 'node_modules/', '*.mjs', 'style/']),
  js.configs.recommended,
  ts.configs.strictTypeChecked,
  ts.configs.stylisticTypeChecked,
  hooks.configs['recommended-latest'],
  {
    plugins: { jupyter },
    rules: {
      'jupyter/command-described-by': 'error',
      'jupyter/incorrect-translator-usage': 'error',
      'jupyter/no-dynamic-translation': 'error',
      'jupyter/no-pageconfig-base-url': 'error',
      'jupyter/no-translation-concatenation': 'error',
      'jupyter/plugin-activation-args': 'error',
      'jupyter/plugin-description': 'error',
      'jupyter/plugin-id-convention': 'error',
      'jupyter/require-signal-this-arg': 'error',
      'jupyter/token-format': 'error'
    }
  },
  {
    languageOptions: {
      parserOptions: { project: ['./tsconfig.json', './tsconfig.unit.json'] }
    },
    rules: {
      eqeqeq: 'error',
      // Lumino's namespaces hold the types of the class of their name
      '@typescript-eslint/no-namespace': 'off',
      // a number in a text needs no conversion
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      // tests of node are not awaited
      '@typescript-eslint/no-floating-promises': [
        'error',
        { allowForKnownSafeCalls: [{ from: 'package', package: 'node:test', name: 'test' }] }
      ]
    }
  }
);
